"""The parts of a model file: linear layers, norms, embeddings, rotary embedding, attention."""

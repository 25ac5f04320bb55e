"""The parts that a model file is built from: products, norms, embedding, rotation, attention."""

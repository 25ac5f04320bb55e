"""The recipe of the built-in model: text, tokenizer, training, evaluation. It is not shipped."""

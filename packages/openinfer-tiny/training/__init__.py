"""The recipe of the built-in model: text, tokenizer, training and evaluation. Not shipped."""

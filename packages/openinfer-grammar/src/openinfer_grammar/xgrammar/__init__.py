"""The other backend, over xgrammar."""

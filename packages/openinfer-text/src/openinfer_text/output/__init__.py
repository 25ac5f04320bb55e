"""The text of an output as it is generated: detokenised, searched for stop strings, parsed."""

"""Chat templates: messages in, prompt text out."""

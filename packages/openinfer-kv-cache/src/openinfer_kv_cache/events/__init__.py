"""KV cache events: records, batches in vLLM's wire format, and the publisher."""

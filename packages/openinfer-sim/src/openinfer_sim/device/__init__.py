"""The modelled device: clock, cost model, published figures, and the executor over them."""

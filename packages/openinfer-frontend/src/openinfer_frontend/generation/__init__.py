"""The way from a validated body to engine requests, and from engine events to deltas."""

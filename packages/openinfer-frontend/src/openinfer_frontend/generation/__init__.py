"""From a validated body to engine requests, and from their events to deltas."""

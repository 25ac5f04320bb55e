"""Requests, slots, queue and counters: what the scheduler holds."""

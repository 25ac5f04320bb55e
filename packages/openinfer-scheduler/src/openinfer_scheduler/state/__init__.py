"""Live requests, slots, the waiting queue and counters: everything the scheduler holds."""

"""The decisions: pure functions of what they are given. No await, no clock, no randomness, no I/O."""

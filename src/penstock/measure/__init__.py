"""Counters, traces and facts about the host."""

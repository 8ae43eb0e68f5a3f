"""Agents: how each is found, installed, started and translated into events."""

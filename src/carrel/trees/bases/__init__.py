"""Bases: immutable trees of projects, kept once and shared by all spaces."""

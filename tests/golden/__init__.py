"""Stores, logs and folds that were written once: what is stored must be read, and go on, with every later code."""

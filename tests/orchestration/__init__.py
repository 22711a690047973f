"""Graphs on their own: what a check finds in them, how they are written down, drawn, put into words and asked."""

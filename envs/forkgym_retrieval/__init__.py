"""Retrieval environments: Atlas and question answering over any corpus."""

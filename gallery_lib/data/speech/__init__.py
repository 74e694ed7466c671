"""Acoustic features with transcripts or speakers: mock data, data sets and their check."""

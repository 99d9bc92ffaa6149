"""Helm's release records, and recovery from an update that was killed while Helm ran."""

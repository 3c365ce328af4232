"""What several tests use: workers, servers, data, versions."""

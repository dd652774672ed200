//! docs/seed-coverage.md: every heading of the three documents is there, and every test that it names exists.

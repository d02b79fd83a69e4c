//! What the end-to-end tests share: a server process, a small HTTP client, scratch directories.

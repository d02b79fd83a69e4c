//! The HTTP layer: routes, authentication, health, metrics and admin.
pub(crate) mod admin;
pub(crate) mod admin_access;
pub(crate) mod aliases;
pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod cors;
pub(crate) mod encoding;
pub(crate) mod endpoints;
pub(crate) mod error;
pub(crate) mod head;
pub(crate) mod health;
pub(crate) mod let_in;
pub(crate) mod models;
pub(crate) mod observe;
pub(crate) mod request_id;
pub(crate) mod routes;
pub(crate) mod stats;

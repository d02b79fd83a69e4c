//! The HTTP layer: routes, authentication, health, metrics and admin.
pub(crate) mod access;
pub(crate) mod admin;
pub(crate) mod body;
pub(crate) mod encoding;
pub(crate) mod error;
pub(crate) mod head;
pub(crate) mod health;
pub(crate) mod inference;
pub(crate) mod model_admin;
mod models;
pub(crate) mod observe;
pub(crate) mod openapi;
pub(crate) mod paths;
pub(crate) mod routes;

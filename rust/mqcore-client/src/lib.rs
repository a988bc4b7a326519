//! The client side of mqcore: connect, publish, consume, pull, ask; reconnect and take up the work again.

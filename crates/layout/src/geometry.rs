//! Geometries: from a level, its options and the members' size to the map of every parity stripe.

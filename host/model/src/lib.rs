//! Weights and architectures: a config becomes a Program

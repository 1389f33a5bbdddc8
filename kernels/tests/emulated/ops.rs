mod add_rms_norm;
mod attend;
mod embed;
mod gated_activation;
mod rope_cache;
mod sample;

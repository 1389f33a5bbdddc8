//! Other engines as backends, over OpenAI's protocol

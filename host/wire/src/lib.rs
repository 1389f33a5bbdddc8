//! OpenAI JSON and SSE, both directions

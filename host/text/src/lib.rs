//! Tokenizer, chat template, detokenizer, stop strings, tool calls

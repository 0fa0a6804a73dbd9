"""Between a person's words and token ids: tokenizer, chat template, and checks that both are the checkpoint's own."""

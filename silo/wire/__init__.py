"""What crosses a link: frames, batches and greetings, in the only shapes that peers may send each other."""

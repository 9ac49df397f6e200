"""What append and load cost as a conversation, the table and the number of conversations at once grow."""

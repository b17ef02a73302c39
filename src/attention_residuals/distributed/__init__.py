"""One model on several processes: functions that take a built model, or a part of one, and a device mesh."""

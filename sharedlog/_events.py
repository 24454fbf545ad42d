"""The events of logs, consumers, players and targets: what each means, and what to do."""

from __future__ import annotations

from _rifl_ground.events import Event

# fmt: off
EVENTS = {
    # `shard` and `substream` are partitions.
    "sharedlog": (
        Event("shared_log_stopped", "critical", "why",
              "SQLite: the file is written no more, as the disk's state is not known.",
              "Repair the disk, then open the log again.", "now"),
        Event("log_session_ended", "warning", "log pid user application",
              "PostgreSQL: a session that hung after `append_in` was ended, since a fence is "
              "raised.",
              "Find out why it hung.", "today"),
        Event("log_waits_for_session", "warning", "log pid user application error",
              "PostgreSQL: a fence waits for a session that hangs after `append_in`, and this role "
              "may not end it.",
              "End the session. Grant the role `pg_signal_backend`.", "now"),
        Event("log_not_open_yet", "warning", "log error",
              "`open` or `create` did not reach the server. It asks again within its `timeout`; "
              "written once.",
              "Look at the server and the network.", "now"),
        Event("log_forked", "error", "log error",
              "A log of another incarnation lies there, or a follower's position is not in this "
              "one: the log was restored, or is another one.",
              "Look at the URL; after a restore `sharedlog restored URL`: "
              "docs/how-to/log-operations.md#backups.", "now"),
        Event("log_restored", "warning", "log incarnation producers lost",
              "By an operator: this many earlier producers are retired. `lost`: why the store had "
              "stopped, if it had.",
              until="no need"),
        Event("commit_note_gone", "error", "file",
              "SQLite: the note beside the log's file was removed while it was open, and is "
              "written again. Of groups' logs `curp.log` writes it.",
              "Find out who removed it: docs/reference/log-engines.md#sqlite.", "today"),
        Event("follower_lost_messages", "error", "log stream name lost error",
              "The next messages of a follower were trimmed, or its hold was dropped. `lost`: the "
              "LSNs.",
              "Decide where it goes on: docs/how-to/log-operations.md#holds.", "now"),
        Event("transaction_lost", "warning", "log error",
              "A transaction was taken for abandoned, or another process decided it: it is rolled "
              "back.",
              "Find out what held it up for so long.", "today"),
        Event("append_given_up", "warning", "log producer seq",
              "The store had no room to find out what became of an unanswered append. Its producer "
              "was retired, so the append is not in the log and never will be.",
              "Make room.", "now"),
        Event("fence_raised", "info", "log fence number",
              "The holder of a lower number can append nothing more."),
        Event("producer_retired", "info", "log producer seq",
              "By a sweeper or an operator: what it had pending is rolled back."),
        Event("producer_forgotten", "warning", "log name seq",
              "By an operator: what its program commits again is in the log twice.",
              until="no need"),
        Event("trimmer_took_over", "info", "log number", "This process trims from now on."),
        Event("sweeper_took_over", "info", "log number", "This process sweeps from now on."),
        Event("log_trimmed", "info", "log rows whole_from kept_by",
              "This many rows are removed; what stays, and for which followers."),
        Event("log_trim_without_room", "warning", "log remaining",
              "This many rows are declared trimmed, but the store had no room to remove them.",
              "Make room; the next trim removes them.", "today"),
        Event("holds_overdue", "warning", "log names kept_by",
              "At each trim: silent followers keep what they need.",
              "`sharedlog holds URL`; start them, or drop their holds: "
              "docs/how-to/log-operations.md#holds.", "today"),
        Event("hold_dropped", "warning", "log name substreams",
              "By an operator: the hold keeps nothing any more.", until="no need"),
        Event("hold_forgotten", "warning", "log name substreams",
              "By an operator: the hold is dropped, and the name can begin again.",
              until="no need"),
        Event("batch_abandoned", "info", "log query plan",
              "By a sweeper: no task of a Spark batch showed a sign of life; what they had pending "
              "is rolled back. A driver that lives plans the batch again, or fails."),
        Event("write_removed", "info", "log query",
              "By a sweeper: a write without a name (docs/reference/spark-log.md#writing) was "
              "silent for a day, and its driver had not removed its row."),
        Event("relay_stopped", "critical", "log outbox error",
              "A relay stops for good: the database or the log was restored, or messages are "
              "damaged.",
              "Do as docs/how-to/outbox.md#the-log-lives-elsewhere says.", "now"),
        Event("outbox_adopted", "warning", "log outbox incarnation before waiting lost",
              "By an operator: an outbox is this log's from now on. `lost`: numbers of "
              "acknowledged messages that the log lacks.",
              "If some are lost: docs/how-to/outbox.md#after-the-log-was-restored.", "today"),
        Event("log_served", "info", "address incarnation", "The log can be reached over gRPC."),
        Event("log_no_longer_served", "info", "address", "Its server stopped."),
        Event("served_log_unavailable", "warning", "address",
              "The log's store does not answer its server, whose health is NOT_SERVING until it "
              "does.",
              "Bring the store back.", "now"),
        Event("served_rights_read", "info", "address",
              "At SIGHUP: the files were read again, and hold from now on."),
        Event("served_rights_not_read", "error", "error",
              "At SIGHUP: a file cannot be read, or is not valid. The earlier rights hold.",
              "Correct the file, and send SIGHUP again.", "today"),
        Event("served_log_not_trimmed", "warning", "error",
              "`serve --trim-every` could not trim. It retries in the next round.",
              "If it repeats, look at the store.", "today"),
        Event("served_log_failed", "error", "exc_info",
              "A call failed in the server. Its client was told that the outcome is not known.",
              "Report it.", "today"),
        Event("consumer_took_over", "info", "log consumer shard number gone position",
              "This process has a partition from now on. `gone`: its predecessor `left` it, "
              "`died`, or said nothing for its lease (`taken`)."),
        Event("consumer_lost_shard", "warning", "log consumer shard why",
              "Another process has the partition, as this one was silent for its lease. What it "
              "had not committed is rolled back.",
              "Find out what suspended it.", "today"),
        Event("consumer_waits", "warning", "log consumer shard error",
              "The log or the store does not answer, or asks to try again. It retries, later and "
              "later.",
              "Bring the store back.", "today"),
        Event("consumer_retries", "error", "log consumer shard seconds error",
              "A partition has been retried for `seconds`, more than a minute: its later messages "
              "wait. Written at each attempt.",
              "Correct what the error says; `sharedlog consumers URL` shows it, too.", "now"),
        Event("consumer_failed", "warning", "log consumer shard attempts error",
              "A function raised, and its transaction is rolled back. `attempts`: of this message "
              "by itself.",
              "If it repeats, correct the function.", "today"),
        Event("consumer_hangs", "warning", "log consumer shard position handler seconds",
              "A function has not returned for 30 s (written again after twice as long). Its "
              "partitions, and all others of the process, wait. `position`: of the message, or the "
              "first of a batch; empty for a timer.",
              "Kill the process: others go on.", "now"),
        Event("consumer_left_tasks", "warning",
              "log consumer shard position handler tasks count",
              "An async function ended, and tasks that it or a library began run on. They are not "
              "cancelled; what the function was lent refuses them. `tasks`: the first 10.",
              "Await them: docs/reference/consumers.md#what-a-function-leaves-running.", "today"),
        Event("consumer_timer_failed", "warning", "log consumer shard error",
              "The function of a timer raised, or its transaction was not committed. It is called "
              "again when it is due.",
              "If it repeats, correct the function.", "today"),
        Event("consumer_buried", "error", "log consumer shard position",
              "A message is given up, and is a dead letter.",
              "`sharedlog deadletters URL show POSITION`; correct the cause, then `retry`.",
              "today"),
        Event("consumer_stopped", "critical", "log consumer shard why",
              "A message is given up, and there is no stream of dead letters: the partition stops.",
              "Correct the cause, then `sharedlog consumers URL --resume NAME`.", "now"),
        Event("player_leads", "info", "log player number",
              "This process sends to the targets of a player from now on."),
        Event("player_leads_no_more", "info", "log player", "It no longer does."),
        Event("player_lost_the_log", "warning", "log error",
              "The log does not answer. Another process may lead by now, so this one sends nothing "
              "more.",
              "Bring the log back.", "now"),
        Event("player_cannot_read", "error", "log error",
              "The main stream cannot be read. The player retries, and targets wait.",
              "Do as the error says.", "now"),
        Event("player_cannot_tell", "warning", "log error",
              "Holds are not moved, or the state of targets is old. The player retries.",
              "If it repeats, look at the log.", "today"),
        Event("player_wishes_unread", "error", "log error",
              "Operators' orders are damaged, or a newer release wrote them. Targets go on as they "
              "were.",
              "Run the newest release everywhere.", "today"),
        Event("player_stopped", "error", "log player error",
              "The log was closed under the player, its handle is unusable, or a newer release "
              "wrote what it reads. It ended, and another process can lead.",
              "Open the log and start a player again. `sharedlog play` ends: restart it.", "now"),
        Event("player_failed", "error", "log player exc_info", "The player ended.",
              "Start it again, and report it.", "now"),
        Event("player_status_failed", "error", "player exc_info",
              "The status page shows old data; messages are delivered.", "Report it.", "today"),
        Event("player_status_request_failed", "debug", "exc_info",
              "A reader of the status page hung up."),
        Event("player_config_read", "info", "targets",
              "`sharedlog play` read its file again, and has these from now on."),
        Event("player_config_refused", "error", "error",
              "Its file is not valid; it goes on as it was.", "Correct the file.", "today"),
        Event("target_down", "warning",
              "player target cause error substream position again_in_s",
              "The connection to a target broke, and is tried again after that time; to one that "
              "is not there, every half minute.",
              "`sharedlog targets URL`; if it repeats, look at the target and the network.", "now"),
        Event("target_died", "warning",
              "player target process in_flight limit substream position",
              "Its process ended with this many messages in flight (at most, if the player has "
              "changed). `limit`: how many may be from now on, 0: any number. If one was alone: "
              "its `substream` and `position`.",
              "Find out why: docs/reference/player.md#a-message-that-kills-its-target.", "today"),
        Event("substream_waits", "warning",
              "player target error substream position again_in_s",
              "A message failed, and is tried again after that time. The target's other partitions "
              "go on.",
              "If it repeats, correct the handler, or `sharedlog skip`.", "today"),
        Event("target_stopped", "error", "player target why substream position error",
              "Nothing is sent to it until an operator acts.",
              "`sharedlog targets URL`, then docs/reference/player.md#states-and-what-to-do.",
              "now"),
        Event("target_not_called", "error", "target error",
              "Its declaration is not valid: a file is missing.", "Bring the file back.", "now"),
        Event("target_failed", "error", "target exc_info",
              "Feeding it failed; it is begun again, others go on.", "Report it.", "today"),
        Event("target_ordered", "warning", "player target order by why",
              "By an operator: `pause`, `resume`, `skip` or `replay`.", until="no need"),
        Event("token_over_plaintext", "warning", "listen",
              "Callers show their tokens over connections that are not encrypted. Replicas and "
              "witnesses write it, too, by their loggers.",
              "Serve over TLS, unless a mesh or a proxy encrypts.", "now"),
        Event("message_given_up", "error", "player target substream position error",
              "A message failed as often as it may. It will be skipped, and is a dead letter then.",
              "Correct the handler, then `sharedlog deadletters URL retry POSITION`.", "today"),
        Event("dead_letter", "warning", "player target substream position reason by",
              "A message that was skipped is in the stream of dead letters.",
              "`sharedlog deadletters URL show POSITION`; correct the cause, then `retry`.",
              "today"),
    ),
    "sharedlog.target": (
        Event("target_open", "warning", "streams hint",
              "Anyone who reaches this target can deliver to it.",
              "Give it a `token` or `peers`.", "now"),
        Event("delivery_abandoned", "warning", "tag place hung",
              "A message was skipped while its handler ran: what that handler does then moves no "
              "index. `hung` handlers hang; at 16 a skip waits.",
              "Restart the process when you can.", "today"),
        Event("delivery_failed", "warning", "answer tag place code details",
              "A handler failed (`failed`; its player retries), or the message will never run here "
              "(`refused`: the method is not allowed or not there, the request does not parse).",
              "If it repeats, correct the handler.", "today"),
        Event("delivery_stopped", "error", "answer tag place details",
              "The outcome of a `plain` handler is not known (`unknown`), or the index is of "
              "another incarnation of the log (`forked`): the partition stops.",
              "Do as docs/reference/player.md#states-and-what-to-do says.", "now"),
        Event("delivery_interceptor_raised", "error", "exc_info",
              "An interceptor of the server raised in place of a handler: the delivery failed.",
              "Correct the interceptor.", "today"),
    ),
}

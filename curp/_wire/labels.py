"""The labels of a group's answers, in their trailing metadata (DESIGN §7)."""

# The leader's configuration number, on an answer that is in the log. An answer without it is
# final only with all witnesses.
SYNCED_KEY = "curp-synced"

-- Behind the reply's beginning: what was removed.
return reply('ok', removed)

-- Try commands on keys that nothing else uses, and tell what each said that failed.
-- KEYS: 1 how these keys begin. ARGV: for each command how many words it has, and these; a
-- word that begins with @ is one of the keys.
local failed, at = {}, 1
while at <= #ARGV do
  local words = {}
  for word = at + 1, at + tonumber(ARGV[at]) do
    table.insert(words, (string.gsub(ARGV[word], '^@', KEYS[1] .. ':')))
  end
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then
    table.insert(failed, words[1])
    table.insert(failed, reply.err)
  end
  at = at + 1 + #words
end
return failed

-- KEYS: 4 the tag's sorted set, if any.
-- ARGV: 3 after, 4 limit, 5 bytes, 6 the append id its caller has read at ``after``, else ''.
local after, limit, bytes = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if after > tail or after < trimmed then return refusal() end
if ARGV[6] ~= '' and after > trimmed then
  local last = entry_at(after)
  if not last or last[APPEND_ID] ~= ARGV[6] then return {'changed', after} end
end
-- The reply: ok, tail, whether it ends because of the bytes, then LSN and fields of each.
local reply, size, full = {'ok', tail, 0}, 0, false

local function add(lsn, fields)
  size = size + #(fields[BODY] or '')
  if #reply > 3 and size > bytes then
    reply[3] = 1
    full = true
    return
  end
  for _, value in ipairs({lsn, fields[APPEND_ID] or '', fields[TAGS] or '',
      fields[CHECKSUM] or '', fields[BODY] or ''}) do
    reply[#reply + 1] = value
  end
end

if KEYS[4] then
  local lsns = redis.call('ZRANGEBYSCORE', KEYS[4], '(' .. text(after), '+inf', 'LIMIT', 0, limit)
  for _, lsn in ipairs(lsns) do
    add(lsn, entry_at(tonumber(lsn)) or {})
    if full then break end
  end
  return reply
end
local last = text(after) .. '-0'
while not full and limit > 0 do
  -- Few at a time: what is over the bytes is read in vain.
  local found = redis.call('XRANGE', log, '(' .. last, '+', 'COUNT', math.min(limit, 50))
  for _, entry in ipairs(found) do
    last = entry[1]
    add(last, entry[2])
    if full then break end
  end
  if #found == 0 then break end
  limit = limit - #found
end
return reply

-- KEYS: 5 the tag's sorted set, if any. ARGV: 4 after, 5 limit, 6 bytes.
-- Behind the reply's beginning: what was removed, '1' if the limit or the bytes cut it short, then
-- of each row: LSN, tags, checksum, time, body.
local after, limit, bytes = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local found, size, cut = reply('ok', removed, '0'), 0, false
if after < removed then return found end

-- An entry's fields are t (tags), c (checksum), m (time), b (body), in this order.
local function add(lsn, fields)
  size = size + #(fields[8] or '')
  if #found > 6 and size > bytes then
    cut = true
    return
  end
  local place = #found
  found[place + 1], found[place + 2], found[place + 3] = lsn, fields[2] or '', fields[4] or ''
  found[place + 4], found[place + 5] = fields[6] or '', fields[8] or ''
end

local count = 0
if KEYS[5] then
  local from = '(' .. text(after)
  for _, lsn in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], from, '+inf', 'LIMIT', 0, limit)) do
    local id = lsn .. '-0'
    local row = redis.call('XRANGE', entries, id, id)[1]
    add(lsn, row and row[2] or {})
    if cut then break end
    count = count + 1
  end
else
  local last = text(after) .. '-0'
  while not cut and count < limit do
    -- Few at a time: what is over the bytes is read in vain.
    local rows = redis.call('XRANGE', entries, '(' .. last, '+', 'COUNT', math.min(limit - count, 50))
    for _, row in ipairs(rows) do
      add(row[1], row[2])
      if cut then break end
      last = row[1]
      count = count + 1
    end
    if #rows == 0 then break end
  end
end
if cut or count >= limit then found[6] = '1' end
return found

-- What is known of a log, and its next events. KEYS: as above. ARGV: what leases of gateways begin with; the number after
-- which to read, and how many pieces of the next event to leave out; how many events or pieces at most, and how many bytes
-- of them, but for the first. Gives tenant, gateway, how it ended, whether it goes on there all the same, whether its
-- gateway is there, its oldest number, events with theirs, pieces with their own, and how many bytes of its event are behind
-- each, and whether there are more; nothing where there is no such log.
local about = redis.call('HMGET', KEYS[1], 'tenant', 'owner', 'end', 'gone', 'goes_on')
if not about[1] or about[4] then return {} end
local function place(entry)
  local number, piece = string.match(entry[1], '^(%d+)-(%d+)')
  return tonumber(number), tonumber(piece)
end
local first = 0
local oldest = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
if oldest then
  local number, piece = place(oldest)
  -- Of an event that has lost its beginning there is nothing to read.
  first = piece > 0 and number + 1 or number
end
local from = (tonumber(ARGV[2]) + 1) .. '-' .. ARGV[3]
local most, most_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local events, bytes, more = {}, 0, 0
-- A few at a time: what does not fit is not taken from the log in vain.
while #events < most and more == 0 do
  local few = redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', math.min(8, most - #events))
  if #few == 0 then break end
  for _, entry in ipairs(few) do
    bytes = bytes + #entry[2][2]
    if #events > 0 and bytes > most_bytes then
      more = 1
      break
    end
    local number, piece = place(entry)
    from = number .. '-' .. (piece + 1)
    events[#events + 1] = { number, piece, entry[2][1] == 'e' and 0 or tonumber(entry[2][4] or 1), entry[2][2] }
  end
end
if most > 0 and #events == most then more = 1 end
return {
  about[1], about[2], about[3] or '', about[5] == '1' and 1 or 0, redis.call('EXISTS', ARGV[1] .. about[2]), first, events,
  more,
}

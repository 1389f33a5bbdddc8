-- What is known of a log, and its next events. KEYS: as above. ARGV: what leases of gateways begin with; the number after
-- which to read; how many events at most, and how many bytes of them, but for the first. Gives tenant, gateway, how it
-- ended, whether its gateway is there, its oldest number, events with theirs, and whether there are more; nothing where
-- there is no such log.
local about = redis.call('HMGET', KEYS[1], 'tenant', 'owner', 'end', 'gone')
if not about[1] or about[4] then return {} end
local oldest = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
local last, most, most_bytes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local events, bytes, more = {}, 0, 0
-- A few at a time: what does not fit is not taken from the log in vain.
while #events < most and more == 0 do
  local few = redis.call('XRANGE', KEYS[2], (last + 1) .. '-0', '+', 'COUNT', math.min(8, most - #events))
  if #few == 0 then break end
  for _, entry in ipairs(few) do
    bytes = bytes + #entry[2][2]
    if #events > 0 and bytes > most_bytes then
      more = 1
      break
    end
    last = tonumber(string.match(entry[1], '^%d+'))
    events[#events + 1] = { last, entry[2][2] }
  end
end
if most > 0 and #events == most then more = 1 end
return {
  about[1], about[2], about[3] or '', redis.call('EXISTS', ARGV[1] .. about[2]),
  oldest and tonumber(string.match(oldest[1], '^%d+')) or 0, events, more,
}

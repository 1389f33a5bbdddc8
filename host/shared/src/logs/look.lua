-- What is known of a log, and its next events. KEYS: as above. ARGV: what leases of gateways begin with; the number after
-- which to read; how many events at most. Gives tenant, gateway, how it ended, whether its gateway is there, its oldest
-- number, and events with theirs; nothing where there is no such log.
local about = redis.call('HMGET', KEYS[1], 'tenant', 'owner', 'end', 'gone')
if not about[1] or about[4] then return {} end
local oldest = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
local events = {}
if tonumber(ARGV[3]) > 0 then
  for _, entry in ipairs(redis.call('XRANGE', KEYS[2], (tonumber(ARGV[2]) + 1) .. '-0', '+', 'COUNT', ARGV[3])) do
    events[#events + 1] = { tonumber(string.match(entry[1], '^%d+')), entry[2][2] }
  end
end
return {
  about[1], about[2], about[3] or '', redis.call('EXISTS', ARGV[1] .. about[2]),
  oldest and tonumber(string.match(oldest[1], '^%d+')) or 0, events,
}

# find_package(ltx2c), then target_link_libraries(yours PRIVATE ltx2c::ltx2c): the folder of ltx2c.h, wherever it is installed.
if(NOT TARGET ltx2c::ltx2c)
  get_filename_component(ltx2c_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../../../include" ABSOLUTE)
  add_library(ltx2c::ltx2c INTERFACE IMPORTED)
  set_target_properties(ltx2c::ltx2c PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${ltx2c_INCLUDE_DIR}")
endif()

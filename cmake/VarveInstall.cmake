# What `cmake --install` lays down: the library, its headers, find_package(varve) and pkg-config files.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS varve EXPORT varve-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT varve-targets NAMESPACE varve:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/varve)

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/varve-config.cmake.in" "${PROJECT_BINARY_DIR}/varve-config.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/varve)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/varve-config-version.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/varve-config.cmake" "${PROJECT_BINARY_DIR}/varve-config-version.cmake"
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/varve)

# A static libvarve needs the C++ and OpenMP runtimes of the compiler that built it.
if(BUILD_SHARED_LIBS)
  set(varve_pc_libs "")
else()
  set(varve_pc_libs "-lstdc++ -lgomp -lm -lpthread")
endif()
file(RELATIVE_PATH varve_pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file("${CMAKE_CURRENT_LIST_DIR}/varve.pc.in" "${PROJECT_BINARY_DIR}/varve.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/varve.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# SPDX-License-Identifier: Apache-2.0
# Headers, the CMake package and the pkg-config files. All of it is text: neither nvcc nor Eigen is needed here.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(polystate_cmake_dir ${CMAKE_INSTALL_DATADIR}/cmake/polystate)
set(polystate_pkgconfig_dir ${CMAKE_INSTALL_DATADIR}/pkgconfig)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/polystate DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# One file a component, so that a component whose dependency is absent defines no target.
install(TARGETS polystate_headers EXPORT polystate_headers INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS polystate EXPORT polystate_polystate)
foreach(component IN ITEMS headers polystate)
  install(EXPORT polystate_${component} NAMESPACE polystate:: DESTINATION ${polystate_cmake_dir})
endforeach()

write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/polystate-config-version.cmake
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/package/polystate-config-version.cmake
              ${CMAKE_CURRENT_LIST_DIR}/polystate-config.cmake ${CMAKE_CURRENT_LIST_DIR}/polystate_cuda.cmake
              ${CMAKE_CURRENT_LIST_DIR}/polystate_add_kernels.cmake
        DESTINATION ${polystate_cmake_dir})

# The prefix is told from the file's own place: an installation may be moved.
file(RELATIVE_PATH polystate_prefix_from_pkgconfig /prefix/${polystate_pkgconfig_dir} /prefix)
string(REGEX REPLACE "/$" "" polystate_prefix_from_pkgconfig "${polystate_prefix_from_pkgconfig}")
foreach(package IN ITEMS polystate polystate-headers polystate-cuda)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${package}.pc.in ${PROJECT_BINARY_DIR}/package/${package}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/${package}.pc DESTINATION ${polystate_pkgconfig_dir})
endforeach()

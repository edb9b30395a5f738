;;; qwen-companion-chat-places.el --- Files that a chat names  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Answers and tools name files of the daemon's host.  If that is this machine,
;; a click visits them.  The names are untrusted.

;;; Code:

(require 'subr-x)
(require 'qwen-companion-daemon)
(require 'qwen-companion-untrusted)

(defun qwen-companion-chat-places-local-file (path)
  "Return the name of the existing file or directory PATH, or nil.
The daemon chooses PATH, so it must be a plain local name: none for
which Emacs has a handler, such as Tramp's, and no device."
  (let* ((handlers file-name-handler-alist)
         (file-name-handler-alist nil)
         (name (and (string-prefix-p "/" path) (expand-file-name path))))
    (and name
         ;; Any handler: Tramp has one for the completion of remote names, too.
         (not (assoc-default name handlers #'string-match-p))
         (or (file-regular-p name) (file-directory-p name))
         name)))

(defun qwen-companion-chat-places-writable-p (path)
  "Return non-nil if PATH is a local file that the user may write or create.
The daemon chooses PATH, see `qwen-companion-chat-places-local-file'."
  (let* ((local (qwen-companion-chat-places-local-file path))
         (directory (and (string-prefix-p "/" path)
                         (not local)
                         (qwen-companion-chat-places-local-file
                          (directory-file-name (file-name-directory path)))))
         (file-name-handler-alist nil))
    (cond (local (and (file-regular-p local) (file-writable-p local)))
          (directory (and (not (file-exists-p path)) (file-writable-p directory))))))

(defun qwen-companion-chat-places-visit (path line)
  "Visit the local file PATH, at LINE if non-nil, in another window."
  (find-file-other-window
   (or (qwen-companion-chat-places-local-file path)
       (user-error "%s no longer exists" (qwen-companion-untrusted-text path))))
  (when line
    (push-mark nil t)
    (let ((position (save-restriction
                      (widen)
                      (goto-char (point-min))
                      (forward-line (1- line))
                      (point))))
      (unless (<= (point-min) position (point-max))
        (widen))
      (goto-char position))))

(defun qwen-companion-chat-places-in-workspace (name)
  "Return the file in the daemon's workspace that NAME, in an answer, refers to.
The value is absolute, and a regular file of this machine below the
workspace, with symbolic links followed; nil if there is none."
  (when-let* ((workspace (and (qwen-companion-daemon-local-p)
                              (not (string-prefix-p "~" name))
                              (qwen-companion-daemon-workspace)))
              ;; Do not use the disk, or a handler, for other names: some
              ;; directories mount any name that is looked up in them.
              (file (let ((file-name-handler-alist nil))
                      (and (file-name-absolute-p workspace)
                           (expand-file-name name workspace))))
              (file (and (string-prefix-p (file-name-as-directory workspace) file)
                         (qwen-companion-chat-places-local-file file))))
    (let ((file-name-handler-alist nil))
      (and (file-regular-p file)
           (qwen-companion-untrusted-in-directory-p file workspace)
           file))))

(provide 'qwen-companion-chat-places)
;;; qwen-companion-chat-places.el ends here

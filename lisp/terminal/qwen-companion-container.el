;;; qwen-companion-container.el --- CLIs in the dev containers of projects  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Finds the running dev container of a local project, by the label that VS
;; Code and the `devcontainer' command give it.  The project is mounted into
;; it, so a CLI there works with the local buffers.

;;; Code:

(require 'cl-lib)
(require 'json)
(require 'subr-x)
(require 'qwen-companion-places)
(require 'qwen-companion-programs)
(require 'qwen-companion-remote)
(require 'qwen-companion-terminal)

(defvar tramp-methods)

(defconst qwen-companion-container--format
  "{{.Names}}\t{{.Label \"devcontainer.local_folder\"}}"
  "The columns of the list of containers.")

(defvar qwen-companion-container--limit 5
  "Seconds after which docker is given up.")

(defun qwen-companion-container--configuration (directory)
  "Return the file that describes the dev container of DIRECTORY, or nil."
  (cl-find-if #'file-regular-p
              (mapcar (lambda (name) (expand-file-name name directory))
                      '(".devcontainer/devcontainer.json" ".devcontainer.json"))))

(defun qwen-companion-container--parse (text)
  "Return the JSON in TEXT, objects as alists, or nil when it is invalid."
  (let ((json-key-type 'string)
        (json-array-type 'list)
        (json-false nil))
    (ignore-errors (json-read-from-string text))))

(defun qwen-companion-container--read (file)
  "Return the JSON in FILE, which may have comments, or nil when it is invalid."
  (with-temp-buffer
    (ignore-errors
      (insert-file-contents file))
    ;; No regexp for a whole string or comment: a long one overflows its stack.
    (while (re-search-forward "[]}\"]\\|//\\|/\\*" nil t)
      (let ((start (match-beginning 0)))
        (pcase (char-before)
          (?\" (while (and (re-search-forward "[\"\\\n]" nil t) (eq ?\\ (char-before)))
                (goto-char (min (1+ (point)) (point-max)))))
          (?/ (delete-region start (line-end-position)))
          (?* (delete-region start (or (search-forward "*/" nil t) (point-max))))
          (_ (save-excursion
               (goto-char start)
               (skip-chars-backward " \t\r\n")
               (when (eq ?, (char-before))
                 (delete-char -1)))))))
    (qwen-companion-container--parse (buffer-string))))

(defun qwen-companion-container--get (object &rest keys)
  "Return the value in OBJECT, parsed JSON, at the path KEYS, or nil."
  (dolist (key keys object)
    (setq object (cdr (assoc key (and (proper-list-p object) object))))))

(defun qwen-companion-container--output (program &rest arguments)
  "Return the output of PROGRAM with ARGUMENTS, \"\" when that fails.
A program that hangs, as docker may without its daemon, has failed."
  (with-temp-buffer
    (let* ((errors (make-pipe-process :name "qwen-companion-container-errors" :noquery t
                                      :filter #'ignore :sentinel #'ignore))
           (process (qwen-companion-programs-start
                     :name "qwen-companion-container" :buffer (current-buffer) :noquery t
                     :command (cons program arguments) :connection-type 'pipe
                     :stderr errors :sentinel #'ignore)))
      (unwind-protect
          (with-timeout (qwen-companion-container--limit
                         (message "qwen-companion: %s does not answer, so no dev container is offered"
                                  program)
                         "")
            (while (process-live-p process)
              (accept-process-output process nil nil t))
            (while (accept-process-output process 0 nil t))
            (if (eq 0 (process-exit-status process))
                (buffer-string)
              ""))
        (delete-process process)
        (delete-process errors)))))

(defun qwen-companion-container--running (program directory)
  "Return the name of DIRECTORY's dev container among those of PROGRAM, or nil."
  (cl-loop with file-name-handler-alist = nil ; An image may have any label.
           for line in (split-string
                        (qwen-companion-container--output
                         program "ps" "--filter" "label=devcontainer.local_folder"
                         "--format" qwen-companion-container--format)
                        "\n" t)
           for (name folder) = (split-string line "\t")
           when (and folder (file-name-absolute-p folder)
                     (equal (file-truename folder) directory))
           return name))

(defun qwen-companion-container--mount (mounts directory)
  "Return the one of MOUNTS with DIRECTORY, (THERE . HERE), or nil."
  (cl-loop with best = nil
           for mount in (and (listp mounts) mounts)
           for here = (qwen-companion-container--get mount "Source")
           for there = (qwen-companion-container--get mount "Destination")
           when (and (stringp here) (stringp there)
                     (qwen-companion-places-below-p directory here)
                     (> (length here) (length (cdr best))))
           do (setq best (cons there here))
           finally return best))

(defun qwen-companion-container--user (file labels)
  "Return \"USER@\" for the user that FILE or LABELS name, or \"\"."
  (let* ((metadata (qwen-companion-container--get labels "devcontainer.metadata"))
         (parts (and (stringp metadata) (qwen-companion-container--parse metadata)))
         (user (cl-some (lambda (part) (qwen-companion-container--get part "remoteUser"))
                        (cons (qwen-companion-container--read file)
                              ;; It may also be one object alone.
                              (if (stringp (car-safe (car-safe parts)))
                                  (list parts)
                                (and (listp parts) (reverse parts)))))))
    ;; The project may name anything.
    (if (and (stringp user) (string-match-p "\\`[[:alnum:]_][[:alnum:]_.-]*\\'" user))
        (concat user "@")
      "")))

(defun qwen-companion-container--add-method (program)
  "Make TRAMP know the names of containers of PROGRAM, as it does since Emacs 29."
  (require 'tramp)
  (unless (assoc program tramp-methods)
    (push `(,program (tramp-login-program ,program)
                     (tramp-login-args (("exec" "-it") ("-u" "%u") ("%h") ("/bin/sh")))
                     (tramp-remote-shell "/bin/sh")
                     (tramp-remote-shell-args ("-i" "-c")))
          tramp-methods)))

(defun qwen-companion-container--find (directory)
  "Return the dev container of the local DIRECTORY, (PLACE THERE . HERE), or nil.
It must run.  Its directory THERE is the local HERE, with DIRECTORY."
  (when-let* ((file (qwen-companion-container--configuration directory))
              (program (cl-find-if #'qwen-companion-programs-find '("docker" "podman")))
              (directory (directory-file-name (file-truename directory)))
              (name (qwen-companion-container--running program directory))
              (found (car-safe (qwen-companion-container--parse
                                (qwen-companion-container--output
                                 program "inspect" "--type" "container" name))))
              (mount (qwen-companion-container--mount
                      (qwen-companion-container--get found "Mounts") directory)))
    (qwen-companion-container--add-method program)
    (cons (format "/%s:%s%s:" program
                  (qwen-companion-container--user
                   file (qwen-companion-container--get found "Config" "Labels"))
                  name)
          mount)))

(defun qwen-companion-container-offer (directory)
  "Return where to start a CLI for the local DIRECTORY: there, or in its container.
Ask the user if the project's dev container runs, and no CLI does in either."
  (pcase (unless (or (qwen-companion-places-remote-p directory)
                     (qwen-companion-terminal-running
                      (directory-file-name (expand-file-name directory))))
           (qwen-companion-container--find directory))
    (`(,place . ,shared)
     (let ((there (directory-file-name
                   (concat place (file-name-as-directory (car shared))
                           (string-remove-prefix
                            (file-name-as-directory (cdr shared))
                            (file-name-as-directory (file-truename directory)))))))
       (if (not (or (qwen-companion-terminal-running there)
                    (yes-or-no-p
                     (format "A relay would run in the dev container %s; it writes a discovery file and settings into ~/.qwen/ide there and removes them at its end.  Run Qwen Code in it? "
                             (qwen-companion-places-label place)))))
           directory
         (qwen-companion-container--share place shared)
         there)))
    (_ directory)))

(defun qwen-companion-container--share (place shared)
  "Serve the container PLACE with the directory SHARED, in this Emacs."
  (setf (alist-get place qwen-companion-remote-places nil nil #'equal) 'serve)
  (setf (alist-get place qwen-companion-remote-shared-directories nil nil #'equal)
        (list shared)))

(provide 'qwen-companion-container)
;;; qwen-companion-container.el ends here

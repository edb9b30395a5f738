;;; qwen-companion-environment.el --- The Python environment  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The Python environment of the companion is a directory `venv-VERSION' in
;; `qwen-companion-backend-directory', where VERSION is that of the list of
;; packages.  It is made beside the one in use and gets its name when it is
;; complete, so a failed installation changes nothing.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-buffers)
(require 'qwen-companion-programs)

(defcustom qwen-companion-python nil
  "Python interpreter (3.10 or later) that runs the companion's server.
A file name or a command on the variable `exec-path'; nil is python3.  If
`qwen-companion-install-backend' has made an environment with it, that is
used, else the interpreter itself."
  :group 'qwen-companion
  :type '(choice (const :tag "python3" nil)
                 (file :tag "Interpreter")))

(defcustom qwen-companion-backend-directory
  (locate-user-emacs-file "qwen-companion/")
  "Directory where `qwen-companion-install-backend' puts its environments."
  :group 'qwen-companion
  :type 'directory)

(defconst qwen-companion-environment-oldest-python "3.10"
  "Oldest supported version of Python.")

(defconst qwen-companion-environment-source
  (let ((here (file-name-directory (macroexp-file-name))))
    ;; In a checkout this file is in a folder of lisp/; some packages have a single folder.
    (expand-file-name "python/" (or (locate-dominating-file here "python/requirements.lock")
                                    here)))
  "Directory that holds the Python package.")

(defvar qwen-companion-environment-made-hook nil
  "Hook run after an environment has been made.")

;;; The environment in use

(defun qwen-companion-environment--lock ()
  "Return the name of the file that lists the packages and their hashes."
  (expand-file-name "requirements.lock" qwen-companion-environment-source))

(defun qwen-companion-environment--current ()
  "Return the directory of the environment for this version of the package."
  (expand-file-name
   (concat "venv-"
           (with-temp-buffer
             (set-buffer-multibyte nil)
             (insert-file-contents-literally (qwen-companion-environment--lock))
             (substring (secure-hash 'sha256 (current-buffer)) 0 12)))
   qwen-companion-backend-directory))

(defun qwen-companion-environment-base ()
  "Return the interpreter with which environments are made, or nil."
  (qwen-companion-programs-find (or qwen-companion-python "python3")))

(defun qwen-companion-environment--stamp (directory)
  "Return the name of the link in DIRECTORY to the interpreter it was made with.
The link also marks the directories that the companion made and may
delete."
  (expand-file-name "made-with" directory))

(defun qwen-companion-environment--own-p (directory)
  "Return non-nil if the companion has made the environment DIRECTORY."
  (file-symlink-p (qwen-companion-environment--stamp directory)))

(defun qwen-companion-environment--interpreter (directory)
  "Return the interpreter of the environment DIRECTORY, or nil.
Return nil, too, if `qwen-companion-python' is set and DIRECTORY was made
with another one."
  (let ((python (expand-file-name "bin/python" directory))
        (base (file-symlink-p (qwen-companion-environment--stamp directory))))
    (and (file-executable-p python)
         (or (not qwen-companion-python)
             (and base (equal base (qwen-companion-environment-base))))
         python)))

(defun qwen-companion-environment--all ()
  "Return the directories of all complete environments, the newest first."
  (and (file-directory-p qwen-companion-backend-directory)
       (sort (directory-files qwen-companion-backend-directory t
                              "\\`venv\\(-[0-9a-f]+\\)?\\'")
             #'file-newer-than-file-p)))

(defun qwen-companion-environment-python ()
  "Return the file name of the interpreter to use, or nil."
  (or (qwen-companion-environment--interpreter
       (qwen-companion-environment--current))
      (cl-some #'qwen-companion-environment--interpreter
               (qwen-companion-environment--all))
      (qwen-companion-environment-base)))

(defun qwen-companion-environment-outdated-p ()
  "Return non-nil when the environment in use is for another version."
  (and (not (qwen-companion-environment--interpreter
             (qwen-companion-environment--current)))
       (cl-some #'qwen-companion-environment--interpreter
                (qwen-companion-environment--all))))

(defconst qwen-companion-environment--loaded (current-time)
  "The time at which the package was loaded.")

(defun qwen-companion-environment-updated-p ()
  "Return non-nil when an update of the package needs a restart.
Some of its files are newer than the running Lisp, or Lisp files are gone."
  (let ((lisp (expand-file-name "../lisp/" qwen-companion-environment-source))
        (python (expand-file-name "qwen_companion/" qwen-companion-environment-source)))
    (cl-flet ((newer-p (attributes)
                (time-less-p qwen-companion-environment--loaded
                             (file-attribute-modification-time attributes)))
              (files (directory regexp)
                (directory-files-and-attributes directory t regexp t)))
      (or (cl-loop for (file) in load-history
                   thereis (when (and file (string-prefix-p lisp file))
                             (let ((source (file-attributes
                                            (concat (file-name-sans-extension file) ".el"))))
                               (or (not source) (newer-p source)))))
          ;; One directory at a time takes a third of a recursive list.
          (cl-loop for (file . attributes) in (files python "\\`[^._]")
                   thereis (if (eq t (file-attribute-type attributes))
                               (cl-loop for (_ . each) in (files file "\\.\\(py\\|js\\)\\'")
                                        thereis (newer-p each))
                             (newer-p attributes)))))))

(defun qwen-companion-environment-restart ()
  "Return a sentence on how to run the version of the package on disk."
  (if (fboundp 'restart-emacs)
      "M-x restart-emacs"
    "quit Emacs and start it again"))

(defun qwen-companion-environment-remedy ()
  "Return a remedy for an interpreter that lacks a package."
  (if qwen-companion-python
      (format "run M-x qwen-companion-install-backend, or install the packages of %s there"
              (abbreviate-file-name (qwen-companion-environment--lock)))
    "run M-x qwen-companion-install-backend"))

;;; Installation

(defconst qwen-companion-environment--buffer-name "*qwen-companion install*")

(defvar-local qwen-companion-environment--part nil
  "Directory of the environment that is being made in this buffer.")

(defvar-local qwen-companion-environment--progress nil
  "Progress reporter of the installation in this buffer.")

(defconst qwen-companion-environment--map
  (qwen-companion-buffers-keymap
   ;; The same commands alone would leave an environment that is not used.
   [remap recompile] #'qwen-companion-install-backend)
  "Keymap of the installation, besides that of a compilation.")

(defun qwen-companion-environment--packages ()
  "Return the number of packages in the list."
  (with-temp-buffer
    (insert-file-contents (qwen-companion-environment--lock))
    (how-many "^[a-z0-9-]+==")))

(defun qwen-companion-environment--count ()
  "Report the number of packages found by pip, from the installation's buffer."
  (progress-reporter-update qwen-companion-environment--progress
                            (how-many "^Collecting " (point-min) (point-max))))

(defun qwen-companion-environment--commands (python part)
  "Return the commands that make an environment PART with the interpreter PYTHON."
  (let ((own (expand-file-name "bin/python" part))
        (lock (qwen-companion-environment--lock))
        (oldest qwen-companion-environment-oldest-python)
        ;; Before the packages, so that a killed installation has the mark too.
        (mark (list "ln" "-s" python (qwen-companion-environment--stamp part))))
    (cons
     (list python "-I" "-c"
           (format "import sys; sys.exit(None if sys.version_info >= (%s) else 'Python %%s is too old, %s is needed; customize qwen-companion-python' %% sys.version.split()[0])"
                   (string-replace "." "," oldest) oldest))
     (if-let* ((uv (qwen-companion-programs-find "uv")))
         `((,uv "venv" "--python" ,python ,part)
           ,mark
           (,uv "pip" "install" "--python" ,own "--require-hashes"
                "--compile-bytecode" "-r" ,lock))
       `((,python "-I" "-m" "venv" ,part)
         ,mark
         ;; The lock contains all dependencies.
         (,own "-I" "-m" "pip" "install" "--disable-pip-version-check" "--no-deps"
               "--require-hashes" "-r" ,lock)
         ;; A fifth of the size, and not needed again; setuptools may be
         ;; missing.
         (,own "-I" "-m" "pip" "uninstall" "--yes" "--quiet" "setuptools" "pip"))))))

;;;###autoload
(defun qwen-companion-install-backend ()
  "Make the Python environment of the companion, or make it anew.
It is a directory in `qwen-companion-backend-directory' with exactly the
packages of the requirements file, checked by hash.  Make it with uv if
that is on the variable `exec-path', else with the venv and pip of
`qwen-companion-python' or python3.  This runs in the background, in a
buffer of its own.  If it fails, the previous environment stays."
  (interactive)
  (require 'compile)
  (let ((python (qwen-companion-environment-base)))
    (unless python
      (user-error "No Python found as %s; install Python %s or later"
                  (or qwen-companion-python "python3")
                  qwen-companion-environment-oldest-python))
    (condition-case err
        (make-directory qwen-companion-backend-directory t)
      (file-error
       (user-error "Cannot make %s (%s); customize `qwen-companion-backend-directory' to a writable directory"
                   (abbreviate-file-name qwen-companion-backend-directory)
                   (if (stringp (nth 2 err)) (nth 2 err) (error-message-string err)))))
    (let* ((here default-directory)
           (part (make-temp-name (concat (qwen-companion-environment--current) ".part-")))
           (buffer (qwen-companion-programs-compile
                    (qwen-companion-environment--commands python part)
                    ;; Their escape sequences would appear in the message about
                    ;; a failure.
                    '("NO_COLOR=1" "PIP_NO_COLOR=1")
                    qwen-companion-environment--buffer-name)))
      (with-current-buffer buffer
        ;; Commands called in this buffer are about the project, not the
        ;; environment.
        (setq default-directory here)
        (use-local-map (make-composed-keymap qwen-companion-environment--map
                                             (current-local-map)))
        (setq qwen-companion-environment--part part
              qwen-companion-environment--progress
              (make-progress-reporter "Installing the Python environment..." 0
                                      (qwen-companion-environment--packages)
                                      nil 1 0))
        (add-hook 'compilation-filter-hook #'qwen-companion-environment--count nil t)
        (add-hook 'compilation-finish-functions
                  #'qwen-companion-environment--ended nil t)))))

(defun qwen-companion-environment-offer ()
  "Offer to make the environment if there is none, and return the answer.
Ask nothing if `qwen-companion-python' is set, or if the system's Python
has the packages."
  (let ((python (qwen-companion-environment-python)))
    (and (not qwen-companion-python)
         python
         (not (cl-some #'qwen-companion-environment--interpreter
                       (qwen-companion-environment--all)))
         ;; The system's Python may have all packages.
         (not (eql 0 (qwen-companion-programs-call
                      python "-I" "-c" "from importlib.metadata import version; version('mcp')")))
         (y-or-n-p "The Python environment is missing; install it now? ")
         (progn (qwen-companion-install-backend) t))))

(defun qwen-companion-environment--ended (buffer outcome)
  "Use the environment that was made in BUFFER, by OUTCOME, a string of compile."
  (let ((part (buffer-local-value 'qwen-companion-environment--part buffer)))
    (if (not (string-prefix-p "finished" outcome))
        (let ((cause (qwen-companion-environment--cause buffer)))
          (delete-directory part t)
          (with-current-buffer buffer
            (goto-char (car cause))
            (dolist (window (get-buffer-window-list buffer nil t))
              (set-window-point window (car cause))))
          (message "qwen-companion: the installation failed: %s; see the buffer %s"
                   (cdr cause) (buffer-name buffer)))
      (let ((left (qwen-companion-environment--switch part)))
        (qwen-companion-environment--close buffer)
        ;; These functions may turn the mode on.
        (run-hooks 'qwen-companion-environment-made-hook)
        (unless (bound-and-true-p qwen-companion-mode)
          (message "qwen-companion: the Python environment is ready; M-x qwen-companion-mode uses it"))
        (when left
          (message "qwen-companion: the Python environment is ready; these have no mark of the companion, so delete them yourself: %s"
                   (mapconcat #'abbreviate-file-name left ", ")))))))

(defun qwen-companion-environment--close (buffer)
  "Close the windows that show BUFFER, except the selected one."
  (dolist (window (get-buffer-window-list buffer nil t))
    (unless (eq window (selected-window))
      (quit-restore-window window 'bury))))

(defun qwen-companion-environment--cause (buffer)
  "Return why the installation in BUFFER has failed: (POS . TEXT).
This is the last line that names an error, else the last line.  If pip
could not reach the index, its last error only says that nothing was
found; return the warning before that.  If Python's venv is missing,
return how to install it."
  (with-current-buffer buffer
    (save-excursion
      (goto-char (point-max))
      (re-search-backward "^Compilation " nil t)
      (skip-chars-backward " \t\n")
      (let ((case-fold-search nil)
            (end (point)))
        (forward-line 0)
        (let ((last (point)))
          (goto-char end)
          (unless (re-search-backward "^ *\\(ERROR\\|error\\|Error\\)\\b" nil t)
            (goto-char last)))
        (cond
         ((and (looking-at-p "ERROR: No matching distribution")
               (re-search-backward
                "^WARNING: Retrying .* connection broken by '\\(.*\\)': " nil t))
          (cons (point)
                (concat "no connection to the package index: "
                        ;; The name of the failed object comes first.
                        (replace-regexp-in-string "\\`.*>: \\|[')]+\\'" ""
                                                  (match-string-no-properties 1)))))
         ;; Debian's Python reports this on several lines.
         ((re-search-backward "ensurepip is not" nil t)
          (cons (line-beginning-position)
                "this Python has no venv; install it (on Debian: apt install python3-venv)"))
         (t (cons (point)
                  (string-trim (buffer-substring-no-properties
                                (point) (line-end-position))))))))))

(defun qwen-companion-environment--switch (part)
  "Make PART, which is complete, the environment in use; delete the others.
Return those that are not deleted because they lack the mark of the
companion."
  (let* ((current (qwen-companion-environment--current))
         (old (concat part "-old"))
         left)
    (when (file-exists-p current)
      (rename-file current old))
    (rename-file part current)
    ;; A process running from one of them has imported all its modules.
    (dolist (other (append (and (file-exists-p old) (list old))
                           (remove current (qwen-companion-environment--all))
                           (remove old (qwen-companion-environment--abandoned)))
                   (nreverse left))
      (if (qwen-companion-environment--own-p other)
          (delete-directory other t)
        (push other left)))))

(defconst qwen-companion-environment--part-age (* 24 60 60)
  "Age in seconds after which an incomplete environment counts as abandoned.")

(defun qwen-companion-environment--abandoned ()
  "Return the directories of installations that were killed.
Younger directories may belong to an Emacs that is installing now."
  (cl-loop for (name . attributes) in (directory-files-and-attributes
                                       qwen-companion-backend-directory t
                                       "\\`venv-[0-9a-f]+\\.part-")
           when (> (float-time (time-since
                                (file-attribute-modification-time attributes)))
                   qwen-companion-environment--part-age)
           collect name))

(defun qwen-companion-environment-records ()
  "Return the directory of the records, named as in the Python part."
  (let ((state (getenv "XDG_STATE_HOME")))
    (expand-file-name "qwen-companion/"
                      (if (and state (file-name-absolute-p state))
                          state
                        "~/.local/state/"))))

(defun qwen-companion-environment-directories ()
  "Return the directories of the companion's environments and its journal."
  (append (and (file-directory-p qwen-companion-backend-directory)
               (cl-remove-if-not #'qwen-companion-environment--own-p
                                 (directory-files qwen-companion-backend-directory
                                                  t "\\`venv")))
          (and (file-directory-p (qwen-companion-environment-records))
               (list (qwen-companion-environment-records)))))

(provide 'qwen-companion-environment)
;;; qwen-companion-environment.el ends here

;;; qwen-companion-programs-test.el --- Tests of programs that are started  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; In a project whose traps make files, see tests/helpers/hostile_project.py.

;;; Code:

(require 'project)
(require 'vc-git)
(require 'qwen-companion-environment)
(require 'qwen-companion-programs)
(require 'qwen-companion-roots)
(require 'qwen-companion-terminal)
(require 'qwen-companion-test-helper)

(defun qwen-companion-programs-test--sprung (directory)
  "Return the traps of the project in DIRECTORY that went off; set them anew."
  (let ((markers (expand-file-name "../markers" directory)))
    (prog1 (directory-files markers nil "[^.]")
      (delete-directory markers t)
      (make-directory markers))))

(defmacro qwen-companion-programs-test--in-trap (&rest body)
  "Run BODY in a project with traps; check that none goes off."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-files nil
     (should (eql 0 (call-process "python3" nil nil nil
                                  (expand-file-name
                                   "tests/helpers/hostile_project.py"
                                   (locate-dominating-file (locate-library "qwen-companion") "Makefile"))
                                  (expand-file-name "project") (expand-file-name "markers"))))
     (let ((default-directory (expand-file-name "project/"))
           (exec-path (append '("node_modules/.bin" nil "~/no-such") exec-path))
           (process-environment (append (list (concat "PATH=node_modules/.bin:.::" (getenv "PATH"))
                                              "PYTHONPATH=.")
                                        process-environment)))
       (qwen-companion-programs-test--sprung default-directory)
       ,@body
       (should-not (qwen-companion-programs-test--sprung default-directory)))))

(ert-deftest qwen-companion-programs-test-the-first-start ()
  "The question about installing runs nothing of the project's."
  (qwen-companion-programs-test--in-trap
    (let ((qwen-companion-python nil)
          (qwen-companion-backend-directory (expand-file-name "../none")))
      (cl-letf (((symbol-function 'y-or-n-p) #'ignore))
        (qwen-companion-environment-offer)))))

(ert-deftest qwen-companion-programs-test-found-by-absolute-names ()
  (qwen-companion-programs-test--in-trap
    (let ((git (qwen-companion-programs-find "git")))
      (should (file-name-absolute-p git))
      (should-not (file-in-directory-p git default-directory)))
    (should-not (qwen-companion-programs-find "./git"))
    (should-not (qwen-companion-programs-find "qwen-companion-no-such"))
    (should-error (qwen-companion-programs-call "qwen-companion-no-such") :type 'file-missing)))

(ert-deftest qwen-companion-programs-test-python-is-isolated ()
  "It finds the module in the directory named, and nothing of the project's."
  (qwen-companion-programs-test--in-trap
    (make-directory "../ours")
    (write-region "import csv, json, os, sys\nprint(__name__, os.getcwd(), len(sys.argv))\n" nil
                  "../ours/qwen_companion_probe.py" nil 'silent)
    (with-temp-buffer
      (should (eql 0 (apply #'qwen-companion-programs-call
                            (qwen-companion-programs-python
                             (qwen-companion-programs-find "python3") "../ours" "qwen_companion_probe"))))
      (should (equal "__main__ / 1\n" (buffer-string))))))

(ert-deftest qwen-companion-programs-test-worktrees ()
  "Nothing of the repository's runs when a worktree is made, and when it is removed."
  (qwen-companion-programs-test--in-trap
    (let* (begun
           (words (qwen-companion-terminal-in-worktrees
                   default-directory '("new") (lambda (path) (push path begun)))))
      (should (string-match-p "without uncommitted changes ([1-9]" words))
      (qwen-companion-test-wait-for begun)
      (should (equal "one\ntwo\nthree\n"
                     (qwen-companion-test-file-text (expand-file-name "a.txt" (car begun)))))
      (let (removed)
        (qwen-companion-terminal-run-git default-directory (lambda () (setq removed t))
                                         "worktree" "remove" "--force" (car begun))
        (qwen-companion-test-wait-for removed)))))

(ert-deftest qwen-companion-programs-test-users-filters-run ()
  "A new worktree has files as the user's own filters give them."
  (qwen-companion-programs-test--in-trap
    (let ((process-environment
           (cons (concat "GIT_CONFIG_GLOBAL=" (expand-file-name "../settings")) process-environment))
          done)
      (write-region "[filter \"mine\"]\n smudge = tr a-z A-Z\n" nil "../settings" nil 'silent)
      (write-region "b.txt filter=mine\n" nil ".git/info/attributes" nil 'silent)
      (qwen-companion-terminal-run-git default-directory (lambda () (setq done t))
                                       "worktree" "add" "--detach" (expand-file-name "../new"))
      (qwen-companion-test-wait-for done)
      (should (equal "ONE\n2\nTHREE\n" (qwen-companion-test-file-text "../new/b.txt"))))))

(ert-deftest qwen-companion-programs-test-version-control-of-emacs ()
  "Git runs nothing else where Emacs runs it for us."
  (qwen-companion-programs-test--in-trap
    (let ((project (list 'vc 'Git default-directory))
          (vc-handled-backends '(Git)))
      (should (member (expand-file-name "a.txt")
                      (qwen-companion-programs-call-with-git
                       default-directory #'project-files
                       (if (version< emacs-version "29") (cons 'vc default-directory) project))))
      (let ((buffer (let (vc-handled-backends enable-local-variables)
                      (find-file-noselect "a.txt"))))
        (unwind-protect
            (with-current-buffer buffer
              (qwen-companion-programs-call-with-git default-directory #'vc-refresh-state)
              (should (eq 'edited (vc-state buffer-file-name))))
          (kill-buffer buffer)))
      (with-temp-buffer
        (qwen-companion-programs-call-with-git
         default-directory #'vc-git-command t 0 nil "diff" "--cached" "--no-ext-diff" "--no-textconv")
        (should (string-match-p "Subproject commit" (buffer-string)))))))

;; Emacs 28 and 29 set directory-local variables there whatever they are.
(ert-deftest qwen-companion-programs-test-roots ()
  "The code in a .dir-locals.el does not run when the root of a file is looked up."
  (qwen-companion-programs-test--in-trap
    (should (equal (directory-file-name default-directory)
                   (qwen-companion-roots-of default-directory)))))

(ert-deftest qwen-companion-programs-test-a-filter-that-cannot-be-named ()
  "Git is not run where an option would not turn the filter off."
  (qwen-companion-programs-test--in-trap
    (write-region "[filter \"a=b\"]\n clean = cat\n" nil ".git/config" t 'silent)
    (should (string-match-p "equals sign"
                            (cadr (should-error (qwen-companion-programs-git default-directory "status")
                                                :type 'user-error))))))

(provide 'qwen-companion-programs-test)
;;; qwen-companion-programs-test.el ends here

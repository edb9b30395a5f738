;;; qwen-companion-container-test.el --- Tests of dev containers  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-container)
(require 'qwen-companion-test-helper)
(require 'tramp)

(defmacro qwen-companion-container-test--with (programs &rest body)
  "Run BODY in a project where each of PROGRAMS, (NAME SCRIPT), is the only one.
The project's configuration has comments."
  (declare (indent 1))
  `(qwen-companion-test-with-files
       '((".devcontainer/devcontainer.json"
          "// How to build it\n{\"image\": \"a//b\", /* \"remoteUser\": \"x\" */\n \"remoteUser\": \"dev\", \"features\": {},\n}\n"))
     (let ((exec-path (list (concat directory "bin")))
           (qwen-companion-remote-places nil)
           (qwen-companion-remote-shared-directories nil)
           (asked nil))
       (pcase-dolist (`(,name ,script) ,programs)
         (let ((file (concat directory "bin/" name)))
           (qwen-companion-test-write file (concat "#!/bin/sh\n" script "\n"))
           (set-file-modes file #o700)))
       (cl-letf (((symbol-function 'yes-or-no-p) (lambda (prompt) (push prompt asked) t)))
         ,@body))))

(defun qwen-companion-container-test--script (directory inspected)
  "Return a script that says that DIRECTORY's container runs, and is INSPECTED."
  (format "case $1 in ps) printf 'other\\t/other\\nbox\\t%s\\n' ;; inspect) printf '%%s' '%s' ;; esac"
          (directory-file-name directory) inspected))

(defconst qwen-companion-container-test--mounts
  "[{\"Mounts\": [{\"Source\": \"/\", \"Destination\": \"/host\"}, {\"Source\": \"%s\", \"Destination\": \"/work/p\"}, {\"Source\": \"/x\", \"Destination\": \"/y\"}]}]"
  "The output of `docker inspect', with %s for the project.")

(ert-deftest qwen-companion-container-test-a-running-one-is-offered ()
  "Its CLIs are served, and its directory is the project's, in this Emacs."
  (qwen-companion-container-test--with nil
    (let ((root (directory-file-name directory))
          (file (concat directory "bin/docker")))
      (qwen-companion-test-write
       file (concat "#!/bin/sh\n"
                    (qwen-companion-container-test--script
                     directory (format qwen-companion-container-test--mounts root))))
      (set-file-modes file #o700)
      (should (equal "/docker:dev@box:/work/p" (qwen-companion-container-offer directory)))
      (should (string-match-p "dev@box" (car asked)))
      (should (equal '(("/docker:dev@box:" . serve)) qwen-companion-remote-places))
      (should (equal `(("/docker:dev@box:" ("/work/p" . ,root)))
                     qwen-companion-remote-shared-directories))
      (should (equal "/docker:dev@box:" (file-remote-p "/docker:dev@box:/work/p")))
      ;; By the user's answer it starts here.
      (cl-letf (((symbol-function 'yes-or-no-p) #'ignore))
        (should (equal directory (qwen-companion-container-offer directory)))))))

(ert-deftest qwen-companion-container-test-a-directory-around-the-project-is-shared ()
  "That may be all of this machine."
  (qwen-companion-container-test--with '(("docker" "exit 1"))
    (qwen-companion-container--add-method "docker")
    (let ((root (directory-file-name directory)))
      (pcase-dolist (`(,source . ,there)
                     `(("/" . ,(concat "/host" root))
                       (,(directory-file-name (file-name-directory root))
                        . ,(concat "/host/" (file-name-nondirectory root)))))
        (cl-letf (((symbol-function 'qwen-companion-container--find)
                   (lambda (_) `("/docker:box:" "/host" . ,source))))
          (should (equal (concat "/docker:box:" there)
                         (qwen-companion-container-offer directory))))))))

(ert-deftest qwen-companion-container-test-the-user-may-be-named-by-its-image ()
  "The last part of the metadata counts; a name that is none is left out."
  (qwen-companion-container-test--with nil
    (qwen-companion-test-write ".devcontainer/devcontainer.json" "{}")
    (let ((root (directory-file-name directory))
          (file (concat directory "bin/podman")))
      (pcase-dolist (`(,metadata ,place)
                     '(("[{\\\\\"remoteUser\\\\\": \\\\\"a\\\\\"}, {\\\\\"remoteUser\\\\\": \\\\\"b\\\\\"}]" "/podman:b@box:")
                       ("[{\\\\\"remoteUser\\\\\": \\\\\"-v|ssh:x\\\\\"}]" "/podman:box:")
                       ("{\\\\\"remoteUser\\\\\": \\\\\"c\\\\\"}" "/podman:c@box:")
                       ("odd" "/podman:box:")
                       ("7" "/podman:box:")))
        (qwen-companion-test-write
         file (format "#!/bin/sh\ncase $1 in ps) printf 'box\\t%s\\n' ;; *) printf '%%s' '[{\"Mounts\": [{\"Source\": \"%s\", \"Destination\": \"/w\"}], \"Config\": {\"Labels\": {\"devcontainer.metadata\": \"%s\"}}}]' ;; esac\n"
                      root root (string-replace "\\\\" "\\" metadata)))
        (set-file-modes file #o700)
        (should (equal (concat place "/w") (qwen-companion-container-offer directory)))))))

(ert-deftest qwen-companion-container-test-comments-of-any-form-and-length ()
  (qwen-companion-test-with-files '(("a" ""))
    (dolist (before `("/** x **/" "/* // */" "// \"" "/***/" "\"a\": \"//\\\"/*\", "
                      ,(format "/* %s */" (make-string 100000 ?x))
                      ,(format "\"a\": \"%s\"," (make-string 100000 ?x))))
      (qwen-companion-test-write
       "a" (format "{%s\n\"remoteUser\": \"dev\", /* the last */ } // and \"this\"" before))
      (should (equal "dev" (qwen-companion-container--get
                            (qwen-companion-container--read "a") "remoteUser"))))))

(ert-deftest qwen-companion-container-test-labels-of-images-call-no-file-name-handler ()
  "An image may have a label that TRAMP would connect to."
  (cl-letf (((symbol-function 'qwen-companion-container--output)
             (lambda (&rest _) "box\t/ssh:far:/p\n"))
            ((symbol-function 'tramp-file-name-handler) (lambda (&rest _) (error "Connected"))))
    (should-not (qwen-companion-container--running "docker" "/p"))))

(ert-deftest qwen-companion-container-test-a-docker-that-hangs-is-given-up ()
  "Its output may come in pieces, and errors are no part of it."
  (qwen-companion-container-test--with '(("docker" "echo x >&2; echo $1; echo y"))
    (should (equal "ps\ny\n" (qwen-companion-container--output "docker" "ps"))))
  (qwen-companion-container-test--with '(("docker" "exec /bin/sleep 60"))
    (let ((qwen-companion-container--limit 0.3))
      (with-timeout (30 (ert-fail "It hangs"))
        (qwen-companion-test-said "does not answer"
          (should (equal directory (qwen-companion-container-offer directory))))
        (should-not (qwen-companion-test-processes))))))

(ert-deftest qwen-companion-container-test-without-one-it-starts-here ()
  "Nothing is asked where none runs, nothing is found out, or the project is not in it."
  (dolist (programs '(nil
                      (("docker" "exit 1"))
                      (("docker" "case $1 in ps) ;; esac"))
                      (("docker" "case $1 in ps) printf 'box\\t%s\\n' \"$PROJECT\" ;; *) exit 1 ;; esac"))
                      (("docker" "case $1 in ps) printf 'box\\t%s\\n' \"$PROJECT\" ;; *) echo '[{\"Mounts' ;; esac"))
                      (("docker" "case $1 in ps) printf 'box\\t%s\\n' \"$PROJECT\" ;; *) echo '[{\"Mounts\": \"odd\"}, 1]' ;; esac"))
                      (("docker" "case $1 in ps) printf 'box\\t%s\\n' \"$PROJECT\" ;; *) echo '[7]' ;; esac"))
                      (("docker" "case $1 in ps) printf 'box\\t%s\\n' \"$PROJECT\" ;; *) echo '[{\"Mounts\": [{\"Source\": \"/x\", \"Destination\": \"/y\"}, 3, {\"Source\": 1}]}]' ;; esac"))
                      (("docker" "case $1 in ps) printf 'box\\t%s\\n' \"$PROJECT\" ;; *) echo '[{\"Mounts\": {\"Source\": \"/x\"}}]' ;; esac"))
                      (("docker" "printf 'box\\nodd\\trelative\\n'"))))
    (qwen-companion-container-test--with programs
      (let ((process-environment (cons (concat "PROJECT=" (directory-file-name directory))
                                       process-environment)))
        (should (equal directory (qwen-companion-container-offer directory)))
        (should-not asked)))))

(ert-deftest qwen-companion-container-test-only-a-project-with-a-configuration-has-one ()
  "In others no program is started; a configuration may be invalid."
  (qwen-companion-test-with-files '(("a" ""))
    (cl-letf (((symbol-function 'qwen-companion-programs-find) (lambda (_) (error "Started"))))
      (should (equal directory (qwen-companion-container-offer directory)))
      (should (equal "/ssh:far:/p" (qwen-companion-container-offer "/ssh:far:/p"))))
    (dolist (text '("{\"remoteUser\": " "" "[" "\"a"))
      (qwen-companion-test-write ".devcontainer.json" text)
      (should-not (qwen-companion-container--get
                   (qwen-companion-container--read (concat directory ".devcontainer.json"))
                   "remoteUser")))))

(provide 'qwen-companion-container-test)
;;; qwen-companion-container-test.el ends here
